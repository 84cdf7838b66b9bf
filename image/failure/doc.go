// Package failure has cryo's one type of errors that users see: its kind, its message, what to do about it, and the rule by which something was refused, each in
// a field of its own. It imports nothing of this project.
package failure
