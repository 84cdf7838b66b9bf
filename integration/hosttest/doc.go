// Package hosttest gives tests a host that seems to have GPUs: a script in place of the helper, and CDI files as nvidia-ctk writes them.
package hosttest
