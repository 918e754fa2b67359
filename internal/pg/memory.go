package pg

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// memory is the path of the file that outlives the process with the highest timeline seen of each database, a line of
// "SYSTEM TIMELINE" each; "" is none. Processes may share it: each adds to what the others know.
type memory string

func (m memory) load() (map[string]uint32, error) {
	newest := map[string]uint32{}
	if m == "" {
		return newest, nil
	}
	text, err := os.ReadFile(string(m))
	if errors.Is(err, fs.ErrNotExist) {
		return newest, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the file of timelines: %w", err)
	}
	for n, line := range slices.Collect(strings.Lines(string(text))) {
		var system string
		var timeline uint32
		if _, err := fmt.Sscanf(line, "%s %d\n", &system, &timeline); err != nil {
			return nil, fmt.Errorf("the file of timelines, %s: line %d is not SYSTEM TIMELINE: repair or remove it", m, n+1)
		}
		newest[system] = max(newest[system], timeline)
	}
	return newest, nil
}

// store replaces the file at once and for good: a crash leaves the old one or the new one.
func (m memory) store(newest map[string]uint32) error {
	if m == "" {
		return nil
	}
	all, err := m.load()
	if err != nil {
		return err
	}
	for system, timeline := range newest {
		all[system] = max(all[system], timeline)
	}
	var text strings.Builder
	for _, system := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s %d\n", system, all[system])
	}
	dir := filepath.Dir(string(m))
	// The database is met before whoever else uses the folder has made it.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".timelines-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text.String())
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), string(m))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replaced is the verdict on a server whose timeline is not the newest.
func (m memory) replaced(timeline, newest uint32) error {
	text := fmt.Sprintf("the server is on timeline %d and was replaced by one on timeline %d: it is not written to any more", timeline, newest)
	if m != "" {
		text += fmt.Sprintf(" (if the database was set back on purpose, remove %s)", m)
	}
	return errors.New(text)
}
