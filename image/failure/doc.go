// Package failure carries an error from one process of cryo's to another: its kind, its message, what to do about it, and the rule by which something was refused, each in
// a field of its own. It imports nothing of this project.
package failure
