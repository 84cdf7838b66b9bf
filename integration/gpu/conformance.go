package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/conformance"
)

// runConformance has a container make each call of the memory API without the library, and another one with it, and wants the same outcomes but for those
// that are known, with a reason.
func runConformance(ctx context.Context, b *bench, r *result) error {
	var outputs [2]string
	for i, c := range []*container{b.container(r.Case+"-driver", "/gpu/conformance", "--managed"), b.container(r.Case, "/gpu/conformance", "--managed").keeper()} {
		text, err := b.output(ctx, c)
		if err != nil {
			return err
		}
		if loaded := strings.Contains(text, "library is loaded"); loaded != (i == 1) {
			return fmt.Errorf("%s has loaded the library: %t", c.id, loaded)
		}
		if err := os.WriteFile(filepath.Join(b.out, c.id+".txt"), []byte(text), 0o644); err != nil {
			return err
		}
		outputs[i] = text
	}
	compared, err := conformance.Compare(outputs[0], outputs[1])
	if err != nil {
		return err
	}
	r.Conformance = compared
	r.checked("%s", compared)
	for line := range strings.Lines(outputs[0]) {
		if strings.HasPrefix(line, "#") {
			r.said("conformance", line)
		}
	}
	r.said("tests that ended early", strings.Join(compared.Ended, "\n"))
	var all []error
	for _, d := range compared.Unexplained() {
		all = append(all, errors.New(d.String()))
	}
	return errors.Join(all...)
}

// output runs a program on the first host to its end and returns what it has printed.
func (b *bench) output(ctx context.Context, c *container) (string, error) {
	defer b.clear(ctx, c)
	if err := c.run(ctx, b.a); err != nil {
		return "", err
	}
	for {
		_, status, err := b.a.Task(ctx, c.id)
		switch {
		case err != nil:
			return "", err
		case ctx.Err() != nil:
			return "", fmt.Errorf("%s has not ended: %w\n%s", c.id, ctx.Err(), end(c.log(b.a), 3000))
		case status == "STOPPED":
			text, err := os.ReadFile(c.log(b.a))
			return string(text), err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
