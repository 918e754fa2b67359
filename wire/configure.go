package wire

// QueueOptions are the options of a queue with the units of the wire (spec/broker-http.md 2.6).
type QueueOptions struct {
	Namespace                   string
	Task                        string
	LeaseTime                   int // seconds, at least 1
	RetryLimit                  int
	RetryDelay                  int // milliseconds; stored and echoed, not enforced
	Priority                    int // stored and echoed, not enforced
	MaxSize                     int // stored and echoed, not enforced
	TTL                         int // seconds; stored and echoed, not enforced
	DeadLetterQueue             bool
	DLQAfterMaxRetries          bool
	DelayedProcessing           int // seconds
	WindowBuffer                int // seconds
	RetentionEnabled            bool
	RetentionSeconds            int
	CompletedRetentionSeconds   int
	MaxWaitTimeSeconds          int
	MinPopWaitTime              int // milliseconds, 0…60000
	EncryptionEnabled           bool
	DedupWindowSeconds          int // 0: no deduplication
	RetentionSinkHold           string
	RetentionSinkHoldMaxSeconds int
}

// DefaultOptions returns what an omitted option means to configure.
func DefaultOptions() QueueOptions {
	return QueueOptions{
		LeaseTime: 300, RetryLimit: 3, RetryDelay: 1000, TTL: 3600, DeadLetterQueue: true, DLQAfterMaxRetries: true,
		DedupWindowSeconds: 3600, RetentionSinkHoldMaxSeconds: 604800,
	}
}

// ConfigureMode says what an omitted option means.
type ConfigureMode string

// The two modes, and the absent one, which QUEENGATE_CONFIGURE_MODE decides.
const (
	ConfigureDefault ConfigureMode = ""
	ConfigureReplace ConfigureMode = "replace"
	ConfigureMerge   ConfigureMode = "merge"
)

// ConfigureRequest is a scanned configure body. Apply gives the effective options.
type ConfigureRequest struct {
	Queue string
	Mode  ConfigureMode
	set   [optionCount]optionValue // what the body named, by index into options
}

type optionValue struct {
	named bool
	null  bool
	num   int
	str   string
	flag  bool
}

// option is one line of the option table: its wire name, where it lives, and the values it takes.
type option struct {
	name     string
	num      func(*QueueOptions) *int
	str      func(*QueueOptions) *string
	flag     func(*QueueOptions) *bool
	min, max int  // for num
	clamp    bool // a number beyond them becomes the nearest of them, as the answer then shows
	pattern  func(string) bool
}

const optionCount = 21

// options is the table of spec/broker-http.md 2.6. Values out of range are refused, but for the one that the protocol
// clamps; its answer echoes what became of it.
var options = [optionCount]option{
	{name: "namespace", str: func(o *QueueOptions) *string { return &o.Namespace }},
	{name: "task", str: func(o *QueueOptions) *string { return &o.Task }},
	{name: "leaseTime", num: func(o *QueueOptions) *int { return &o.LeaseTime }, min: 1},
	{name: "retryLimit", num: func(o *QueueOptions) *int { return &o.RetryLimit }},
	{name: "retryDelay", num: func(o *QueueOptions) *int { return &o.RetryDelay }},
	{name: "priority", num: func(o *QueueOptions) *int { return &o.Priority }, min: -maxOption},
	{name: "maxSize", num: func(o *QueueOptions) *int { return &o.MaxSize }},
	{name: "ttl", num: func(o *QueueOptions) *int { return &o.TTL }},
	{name: "deadLetterQueue", flag: func(o *QueueOptions) *bool { return &o.DeadLetterQueue }},
	{name: "dlqAfterMaxRetries", flag: func(o *QueueOptions) *bool { return &o.DLQAfterMaxRetries }},
	{name: "delayedProcessing", num: func(o *QueueOptions) *int { return &o.DelayedProcessing }},
	{name: "windowBuffer", num: func(o *QueueOptions) *int { return &o.WindowBuffer }},
	{name: "retentionEnabled", flag: func(o *QueueOptions) *bool { return &o.RetentionEnabled }},
	{name: "retentionSeconds", num: func(o *QueueOptions) *int { return &o.RetentionSeconds }},
	{name: "completedRetentionSeconds", num: func(o *QueueOptions) *int { return &o.CompletedRetentionSeconds }},
	{name: "maxWaitTimeSeconds", num: func(o *QueueOptions) *int { return &o.MaxWaitTimeSeconds }},
	{name: "minPopWaitTime", num: func(o *QueueOptions) *int { return &o.MinPopWaitTime }, max: 60000, clamp: true},
	{name: "encryptionEnabled", flag: func(o *QueueOptions) *bool { return &o.EncryptionEnabled }},
	{name: "dedupWindowSeconds", num: func(o *QueueOptions) *int { return &o.DedupWindowSeconds }},
	{name: "retentionSinkHold", str: func(o *QueueOptions) *string { return &o.RetentionSinkHold }, pattern: sinkName},
	{name: "retentionSinkHoldMaxSeconds", num: func(o *QueueOptions) *int { return &o.RetentionSinkHoldMaxSeconds }, min: 60, max: 31536000},
}

const maxOption = 1<<31 - 1

const (
	optNamespace          = 0
	optTask               = 1
	optRetention          = 13
	optCompletedRetention = 14
)

func sinkName(s string) bool {
	if len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

func optionIndex(key []byte) int {
	for i := range options {
		if options[i].name == string(key) {
			return i
		}
	}
	return -1
}

// Apply returns the options after the request: on top of defaults (replace) or of stored (merge); an explicit null
// restores the default in both modes. absent is what ConfigureDefault means.
func (r *ConfigureRequest) Apply(stored, defaults QueueOptions, absent ConfigureMode) QueueOptions {
	mode := r.Mode
	if mode == ConfigureDefault {
		mode = absent
	}
	out := stored
	if mode != ConfigureMerge {
		out = defaults
	}
	for i := range options {
		v, o := &r.set[i], &options[i]
		if !v.named {
			continue
		}
		switch {
		case o.num != nil && v.null:
			*o.num(&out) = *o.num(&defaults)
		case o.num != nil:
			*o.num(&out) = v.num
		case o.str != nil && v.null:
			*o.str(&out) = *o.str(&defaults)
		case o.str != nil:
			*o.str(&out) = v.str
		case v.null:
			*o.flag(&out) = *o.flag(&defaults)
		default:
			*o.flag(&out) = v.flag
		}
	}
	return out
}

// Retention returns the longest retention the request asks for in seconds: the larger of retentionSeconds and
// completedRetentionSeconds. 0 means that it states none.
func (r *ConfigureRequest) Retention() int64 {
	return int64(max(r.set[optRetention].num, r.set[optCompletedRetention].num, 0))
}

// ScanConfigure reads a configure body. Options stand in "options" or, as old clients send them, at the top level;
// when "options" is an object, only namespace and task are also read from the top level, and the ones inside win.
func ScanConfigure(body []byte) (ConfigureRequest, error) {
	s := scanner{b: body}
	var req ConfigureRequest
	var inside [optionCount]optionValue
	var keys seen
	nested := false
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "queue":
			if err := keys.add(30, "queue"); err != nil {
				return err
			}
			if k, err := s.peek(); err != nil {
				return err
			} else if k != kindString {
				return bad("queue must be a string")
			}
			var err error
			req.Queue, err = s.name("queue", "")
			return err
		case "mode":
			if err := keys.add(29, "mode"); err != nil {
				return err
			}
			return s.configureMode(&req.Mode)
		case "options":
			if err := keys.add(28, "options"); err != nil {
				return err
			}
			switch k, err := s.peek(); {
			case err != nil:
				return err
			case k == kindNull:
				return s.literal("null")
			case k != kindObject:
				return bad("options must be an object")
			}
			nested = true
			var known seen
			return s.object(func(key []byte) error { return s.option(key, &known, &inside, 2) })
		}
		return s.option(key, &keys, &req.set, 1)
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return ConfigureRequest{}, err
	}
	if keys&(1<<30) == 0 {
		return ConfigureRequest{}, bad("queue is missing")
	}
	if nested {
		for _, i := range []int{optNamespace, optTask} {
			if !inside[i].named {
				inside[i] = req.set[i]
			}
		}
		req.set = inside
	}
	return req, nil
}

func (s *scanner) configureMode(into *ConfigureMode) error {
	mode, null, err := s.optionalText("mode")
	if err != nil || null {
		return err
	}
	switch m := ConfigureMode(mode); m {
	case ConfigureMerge, ConfigureReplace:
		*into = m
		return nil
	}
	return bad(`mode must be "merge" or "replace"`)
}

// option consumes the value of key into set when it is an option, and skips it otherwise.
func (s *scanner) option(key []byte, known *seen, set *[optionCount]optionValue, depth int) error {
	i := optionIndex(key)
	if i < 0 {
		_, err := s.skip(depth)
		return err
	}
	o := &options[i]
	if err := known.add(uint(i), o.name); err != nil {
		return err
	}
	k, err := s.peek()
	if err != nil {
		return err
	}
	v := optionValue{named: true}
	switch {
	case k == kindNull:
		v.null = true
		err = s.literal("null")
	case o.num != nil && k == kindNumber:
		v.num, err = s.integer(o.name)
		upper := o.max
		if upper == 0 {
			upper = maxOption
		}
		switch {
		case err != nil || v.num >= o.min && v.num <= upper:
		case o.clamp:
			v.num = min(max(v.num, o.min), upper)
		default:
			err = bad("%s must be %d…%d", o.name, o.min, upper)
		}
	case o.str != nil && k == kindString:
		if v.str, err = s.text(); err == nil {
			err = checkName(o.name, v.str)
		}
		if err == nil && o.pattern != nil && !o.pattern(v.str) {
			err = bad("%s has characters that are not allowed or is too long", o.name)
		}
	case o.flag != nil && k == kindTrue:
		v.flag = true
		err = s.literal("true")
	case o.flag != nil && k == kindFalse:
		err = s.literal("false")
	case o.num != nil:
		err = bad("%s must be a whole number", o.name)
	case o.str != nil:
		err = bad("%s must be a string", o.name)
	default:
		err = bad("%s must be true or false", o.name)
	}
	set[i] = v
	return err
}
