package broker

import (
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// endTrip ends the span of a round trip that a request makes alone. Those that requests share are made by the combiner
// and the fuser.
func endTrip(s tracing.Span, c tracing.Cargo, err error) {
	s.EndTrip(c, codeOf(err))
}

// codeOf names an error in a trace, by its code: its text may quote what is nobody's business.
func codeOf(err error) string {
	if err == nil {
		return ""
	}
	return string(wire.AsError(err).Code)
}
