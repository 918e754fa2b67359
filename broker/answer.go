package broker

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// answer replies 200 with v as JSON: for what operators read, where the shape matters and the nanoseconds do not.
func (x *exchange) answer(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer of %s: %w", x.route.Pattern, err)
	}
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return append(dst, raw...) })
	return nil
}

// millis is a time with milliseconds on the wire, null when it is zero.
type millis time.Time

// MarshalJSON implements json.Marshaler.
func (m millis) MarshalJSON() ([]byte, error) {
	return appendTime(nil, time.Time(m)), nil
}

// args parses the query of a request.
func (x *exchange) args(known ...string) *wire.Args {
	return wire.ParseArgs(x.ctx.URI().QueryString(), known...)
}

// pagination echoes the page of a list.
type pagination struct {
	Limit  int `json:"limit"`
	Offset int `json:"offset"`
}

// cut returns the part of all that is on the page.
func cut[T any](all []T, page wire.Page) []T {
	from := min(page.Offset, len(all))
	return all[from:min(from+page.Limit, len(all))]
}

// round keeps what a chart can show.
func round(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }
