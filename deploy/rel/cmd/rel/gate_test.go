package main

import (
	"bytes"
	"fmt"
	"testing"
)

func TestLinesOfALaneHaveItsLabel(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &labelled{to: &out, label: "G1: "}
	for _, text := range []string{"one\n", "two\n  three\n"} {
		if n, err := fmt.Fprint(l, text); err != nil || n != len(text) {
			t.Errorf("%q: %d bytes written, %v", text, n, err)
		}
	}
	if want := "G1: one\nG1: two\nG1:   three\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
