// Package host tells what a host is, as far as a restored process can notice: kernel, processor, cgroups, security
// module, CRIU and runc. Files are read below a root that is given as a value.
//
// # Whether a snapshot fits
//
// This part decides whether a snapshot can run on a host, before anything is started.
//
// All that is compared stands in one table of rules, see [FitRules]; a mismatch is fatal or a warning. A fatal one can be
// overridden by the rule's name, by a user who knows better.
//
// [CollectLater] is for the start of the programs of cryo on a host.
package host
