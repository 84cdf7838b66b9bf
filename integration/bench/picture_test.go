package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestPicture: the picture in README.md is drawn from the report beside it.
func TestPicture(t *testing.T) {
	p, err := merge([]string{"picture.json"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.picture()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("picture.svg")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Error("picture.svg is of another report: go run ./integration/bench --merge --picture integration/bench/picture.svg integration/bench/picture.json")
	}
	for _, name := range []string{"cryo checkpoint", "bare criu dump", "ctr c checkpoint", "cryo restore, local", "cryo restore, registry", "criu restore, no container", "ctr c restore"} {
		if !strings.Contains(got, ">"+name) {
			t.Errorf("there is no bar for %s", name)
		}
	}
	wellFormed(t, got)
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestPictureOfNothing: a report in which nothing was run, or cryo alone, has no picture.
func TestPictureOfNothing(t *testing.T) {
	alone := &figure{Case: "restore", Subject: "1 MiB", What: "cryo restore, local, warm: first answer", Cryo: []float64{1}, BesideWhat: "criu <restore>"}
	p := &report{Figures: []*figure{alone, {Case: "freeze", Subject: "1 MiB", BesideWhat: besidePause + "x"}}}
	if _, err := p.picture(); err == nil {
		t.Error("it is drawn")
	}
	alone.Beside = []float64{2, 4}
	got, err := p.picture()
	if err != nil || strings.Count(got, "<rect") != 2 || !strings.Contains(got, "criu &lt;restore&gt;") || !strings.Contains(got, "3.00 s") {
		t.Errorf("%v: %s", err, got)
	}
	wellFormed(t, got)
}
