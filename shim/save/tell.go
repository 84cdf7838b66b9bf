package save

import (
	"cmp"
	"context"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/restore"
)

// EndedTopic is that of the event by which containerd's clients hear that a checkpoint has ended. The event has the container's id (container_id; as the caller calls it, where it
// was not found); the name that the snapshot was to have (snapshot), its digest, empty where there is no snapshot, and its size in bytes (bytes), of which were sent (sent);
// the result, which is done or the class of the error ([failure.Class]), and the error's text (reason); how long the container stood still (freeze), and what each phase took
// (phases), both in seconds. The phases lock, save, dump, files and load are in the freeze; devices, pack and push come after it, or with it. See [Result] and [GPUSeconds].
const EndedTopic = "/cryo/checkpoint/ended"

// tellTime bounds how long containerd may take to be told.
const tellTime = 5 * time.Second

// tell tells containerd's clients how a checkpoint has ended. r is nil where there is no snapshot.
func tell(ctx context.Context, client *containerd.Client, o Options, r *Result, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTime)
	defer cancel()
	event, err := structpb.NewStruct(eventOf(o, r, failed))
	if err == nil {
		err = client.EventService().Publish(ctx, EndedTopic, event)
	}
	if err != nil {
		log.G(ctx).WithError(err).Debug("tell containerd's clients of the checkpoint")
	}
}

// eventOf returns the fields of the event.
func eventOf(o Options, r *Result, failed error) map[string]any {
	if r == nil {
		r = &Result{}
	}
	gpu, push := r.GPU, r.Push
	if gpu == nil {
		gpu = &GPUSeconds{}
	}
	if push == nil {
		push = &restore.Transfer{}
	}
	fields := map[string]any{
		"container_id": cmp.Or(r.Container, o.Container), "snapshot": cmp.Or(r.Reference, o.Ref), "digest": r.Digest, "bytes": r.Size, "sent": push.Moved, "result": "done", "freeze": r.Freeze,
		"phases": map[string]any{
			"lock": gpu.Lock, "save": gpu.Save, "dump": r.Dump, "files": r.RootFS, "load": gpu.Load, "devices": gpu.Devices, "pack": r.Pack, "push": push.Seconds,
		},
	}
	if failed != nil {
		fields["result"], fields["reason"] = failure.Class(failed), failed.Error()
	}
	return fields
}
