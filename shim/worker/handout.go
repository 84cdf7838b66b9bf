package worker

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
)

// HandoutAnnotation is an annotation of a task's update, whose value is a [Handout]. containerd passes it on and does not keep it.
const HandoutAnnotation = "io.cryo.pool.take"

// TakenRule is the rule of the error that a container is no member of a pool any more that could be taken.
const TakenRule = "pool-taken"

// Handout takes a member out of a pool: its program learns what is new, and goes on. A member is taken once.
type Handout struct {
	Name string   `json:"name"`          // what the container's user calls it
	Env  []string `json:"env,omitempty"` // as in [Choices]
}

// Annotation returns the annotations of the update.
func (t Handout) Annotation() map[string]string {
	data, _ := json.Marshal(t) // of strings
	return map[string]string{HandoutAnnotation: string(data)}
}

// ParseHandout reads the annotation's value.
func ParseHandout(text string) (t Handout, err error) {
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return t, fmt.Errorf("read the annotation %s: %w: %w", HandoutAnnotation, err, errdefs.ErrInvalidArgument)
	}
	return t, nil
}
