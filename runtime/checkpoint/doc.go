// Package checkpoint is the sequence of a checkpoint and its rollback.
//
// A stock client's checkpoint is a dump: the container is afterwards as it was, or ended if the client asked for that.
// A checkpoint that makes a snapshot is held: the container is frozen and dumped, and stays frozen until the checkpoint process, its
// [Holder], has taken what must be of the same instant, the writable layer above all. The holder decides whether the container
// goes on or ends; if it dies, the container goes on.
//
//	save -> freeze -> dump -> dumped (holder captures), drain -> resume: thaw, load; or kill
//	   \________ any failure, cancelling, or a holder that is gone: thaw, load ________/
//
// A container that is saved in step with others ([Request.Together]) has its connections cut between the freeze and the dump, and waits there for its holder ([Holder].Held): packets reach none
// of the containers from when all stand still until each is dumped. The connections go on when the container does.
//
//	freeze -> cut (connections wait to be accepted: open, thaw, freeze, cut) -> held (the others are cut, too) -> dump ... thaw, or kill -> open
//
// What a container has on devices is saved before the freeze and loaded after the thaw ([Devices]), since a device's driver
// needs running processes for that. Device memory that does not go through the container's memory is sent to the holder
// before the thaw, or while the container runs again ([Result.Pending]). A container that a stock client has paused is thawed
// to save its devices and frozen again. It stays frozen, with its devices saved ([Result.Parked]), until the client resumes it.
package checkpoint
