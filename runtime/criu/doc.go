// Package criu knows CRIU from outside: the configuration file that carries options past runc, the reasons in its
// logs, its version, and what a directory of its images needs on restore.
//
// CRIU itself is executed by runc, never from here; runc looks it up in PATH.
package criu
