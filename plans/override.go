package plans

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
)

// Overrides are one cluster's differences from its plan, by the names of the database: nil is unlimited, a number is
// that number, an absent name follows the plan.
type Overrides map[string]*float64

// ParseOverrides reads overrides as the database holds them. Names this program does not know and values of another
// type or out of range are left out, so that the plan's value stands; only what is no JSON object is an error.
func ParseOverrides(raw []byte) (Overrides, error) {
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("parse overrides: %w", err)
	}
	var o Overrides
	for name, value := range doc {
		_, isRate := rateFields[name]
		_, isAmount := amountFields[name]
		if !isRate && !isAmount {
			continue
		}
		var limit *float64
		if value != nil {
			n, ok := value.(float64)
			if !ok || n < 0 || isRate && n > maxRate || isAmount && (n > maxAmount || n != math.Trunc(n)) {
				continue
			}
			limit = &n
		}
		if o == nil {
			o = make(Overrides, len(doc))
		}
		o[name] = limit
	}
	return o, nil
}

// ParseModes reads modes by limit name as the database holds them. Unknown names and modes are left out: such a limit
// is enforced.
func ParseModes(raw []byte) (map[string]Mode, error) {
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("parse modes: %w", err)
	}
	var modes map[string]Mode
	for name, value := range doc {
		var m Mode
		switch value {
		case "enforce":
			m = Enforce
		case "shadow":
			m = Shadow
		case "off":
			m = Off
		default:
			continue
		}
		if !limitNames[name] {
			continue
		}
		if modes == nil {
			modes = make(map[string]Mode, len(doc))
		}
		modes[name] = m
	}
	return modes, nil
}

// Merge returns what counts for a cluster: the plan with the overrides on top, every rate with its burst, and the
// cluster's modes over the plan's. The result may share pointers and maps with its arguments; none is changed.
func Merge(plan Limits, o Overrides, modes map[string]Mode) Limits {
	l := plan
	for name, limit := range o {
		if field, ok := rateFields[name]; ok {
			*field(&l) = limit
		} else if field, ok := amountFields[name]; ok {
			if limit == nil {
				*field(&l) = nil
			} else {
				*field(&l) = new(int64(*limit))
			}
		}
	}
	l.settleBursts()
	if len(modes) > 0 {
		if len(plan.Modes) == 0 {
			l.Modes = modes
		} else {
			l.Modes = maps.Clone(plan.Modes)
			maps.Copy(l.Modes, modes)
		}
	}
	return l
}
