package lab

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// alarming is what no log of the product may say, whatever was done to it: panics, races, tables that contradict each
// other.
var alarming = regexp.MustCompile(`panic|DATA RACE|fatal error|goroutine \d+ \[|out of order|its row says|corrupt|invariant`)

// harmless are lines that alarming matches and that are as they should be.
var harmless = regexp.MustCompile(`quarantine|"level":"INFO"`)

// mostLines is how many lines of one log are noted.
const mostLines = 20

// ScanLogs notes what the logs of the product say that they may not.
func (l *Lab) ScanLogs() error {
	names, err := filepath.Glob(filepath.Join(l.dir, "log", "*.log"))
	if err != nil {
		return err
	}
	for _, name := range names {
		process := strings.TrimSuffix(filepath.Base(name), ".log")
		if strings.HasPrefix(process, "pg") || process == "redis" {
			continue
		}
		if err := l.scan(name, process); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) scan(name, process string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	noted := 0
	for lines.Scan() && noted < mostLines {
		if line := lines.Text(); alarming.MatchString(line) && !harmless.MatchString(line) {
			l.rec.Note(hist.Log, &hist.LogNote{Process: process, Line: line})
			noted++
		}
	}
	return lines.Err()
}
