package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/wire"
)

func TestASpanThatEndsBeforeItBeginsIsRefusedInSoManyWords(t *testing.T) {
	t.Parallel()
	args := wire.ParseArgs([]byte("from=2026-09-02T00:00:00Z&to=2026-09-01T00:00:00Z"), "from", "to")
	_, err := spanOf(args, time.Now(), time.Hour)
	if e := wire.AsError(err); e == nil || e.Code != wire.InvalidRequest || !strings.Contains(e.Text(), "from must not be later than to") {
		t.Errorf("got %v", err)
	}
}
