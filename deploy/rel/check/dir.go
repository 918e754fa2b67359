package check

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// The files of a stored run. Every other JSON file in its folder that names a run must name the same one.
const (
	HistoryFile  = "history.jsonl.gz"
	ReportFile   = "report.json"
	MarkdownFile = "report.md"
)

// Dir judges the run that is stored in a folder, and writes report.json and report.md beside the history. A run that was
// judged before is judged again.
//
// It refuses a folder that holds anything of another run than its history's, and, when run is not empty, of another one
// than that: evidence of two runs must never be mixed.
func Dir(dir, run string, opt Options) (*Report, error) {
	path := filepath.Join(dir, HistoryFile)
	h, err := hist.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }() // only read
	if run != "" && h.Header.Run != run {
		return nil, fmt.Errorf("%s is of the run %q, not of %q", path, h.Header.Run, run)
	}
	if err := sameRun(dir, h.Header.Run); err != nil {
		return nil, err
	}
	r, err := Judge(h, opt)
	if err != nil {
		return nil, fmt.Errorf("judge %s: %w", path, err)
	}
	again, err := hist.OpenFile(path)
	if err != nil {
		return nil, err
	}
	err = r.Explain(again)
	if err := errors.Join(err, again.Close()); err != nil {
		return nil, fmt.Errorf("read %s again: %w", path, err)
	}
	return r, r.save(dir)
}

// sameRun refuses artefacts of another run.
func sameRun(dir, run string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("look at the run of an artefact: %w", err)
		}
		var of struct {
			Run string `json:"run"`
		}
		if json.Unmarshal(raw, &of) == nil && of.Run != "" && of.Run != run {
			return fmt.Errorf("%s is of the run %q, and the history is of %q", file, of.Run, run)
		}
	}
	return nil
}

func (r *Report) save(dir string) error {
	var asJSON, asText bytes.Buffer
	if err := r.WriteJSON(&asJSON); err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := r.WriteMarkdown(&asText); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	for name, b := range map[string][]byte{ReportFile: asJSON.Bytes(), MarkdownFile: asText.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return fmt.Errorf("save the report: %w", err)
		}
	}
	return nil
}
