package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"
)

// errNoTerminal says that there is no terminal to ask at.
var errNoTerminal = errors.New("there is no terminal to ask for it")

// askPassword asks for a password on the terminal that is standard input, and does not show what is typed. Without a terminal the error is [errNoTerminal].
func (a *app) askPassword(ctx context.Context, of string) (string, error) {
	in := int(os.Stdin.Fd())
	before, err := term.GetState(in)
	if err != nil {
		return "", errNoTerminal
	}
	fmt.Fprint(a.stderr, format("password of %s: ", of))
	defer fmt.Fprintln(a.stderr)
	type answer struct {
		text []byte
		err  error
	}
	typed := make(chan answer, 1)
	go func() {
		text, err := term.ReadPassword(in)
		typed <- answer{text, err}
	}()
	select {
	case got := <-typed:
		if got.err != nil {
			return "", fmt.Errorf("read the password of %s: %w", of, got.err)
		}
		return string(got.text), nil
	case <-ctx.Done():
		_ = term.Restore(in, before) // ctx's error says more
		return "", fmt.Errorf("read the password of %s: %w", of, context.Cause(ctx))
	}
}
