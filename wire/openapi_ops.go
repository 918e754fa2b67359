package wire

// opDoc is what the document says of an operation beyond its route.
type opDoc struct {
	id       string
	tag      string
	query    []queryParam
	body     string // a schema, "" without one
	optional bool   // the body may be absent
	answers  []opAnswer
}

// opAnswer is one answer that is no refusal; without a schema it has no body.
type opAnswer struct {
	status int
	text   string
	schema string
}

func answers200(schema string) []opAnswer { return []opAnswer{{200, "done", schema}} }

func answers201(schema string) []opAnswer { return []opAnswer{{201, "stored", schema}} }

// Parameters that several operations share.
var (
	fromTo        = []queryParam{{name: "from", kind: "time"}, {name: "to", kind: "time"}}
	ofTime        = append([]queryParam{{name: "queue", kind: "string"}}, fromTo...)
	listed        = []queryParam{{name: "namespace", kind: "string"}, {name: "task", kind: "string"}, {name: "limit", kind: "integer"}, {name: "offset", kind: "integer"}}
	popAnswers    = []opAnswer{{200, "messages", "PopAnswer"}, {204, "no messages; with X-Queen-Degraded: the cell could not be asked for them", ""}}
	healthAnswers = func(schema string) []opAnswer { return []opAnswer{{200, "well", schema}, {503, "not well", schema}} }

	popQuery = []queryParam{
		{name: "batch", kind: "integer", def: DefaultBatch},
		{name: "partitions", kind: "integer", def: 1},
		{name: "autoAck", kind: "boolean", def: false},
		{name: "wait", kind: "boolean", def: false},
		{name: "timeout", kind: "integer", def: DefaultTimeout.Milliseconds()},
		{name: "leaseSeconds", kind: "integer"},
		{name: "consumerGroup", kind: "string"},
		{name: "subscriptionMode", kind: "all|new|new-only"},
		{name: "subscriptionFrom", kind: "string"},
		{name: "conflation", kind: "boolean"},
		{name: "autopilot", kind: "boolean", def: false},
	}
)

func paged(limit int, more ...queryParam) []queryParam {
	return append(more, queryParam{name: "limit", kind: "integer", def: limit}, queryParam{name: "offset", kind: "integer", def: 0})
}

// opDocs has one entry per Op; a test holds it together with Routes and the schemas.
var opDocs = map[Op]opDoc{
	OpPush:         {id: "push", tag: "messages", body: "PushRequest", answers: answers201("PushResults")},
	OpPop:          {id: "pop", tag: "messages", query: popQuery, answers: popAnswers},
	OpPopPartition: {id: "popPartition", tag: "messages", query: popQuery, answers: popAnswers},
	OpPopDiscover: {
		id: "popDiscover", tag: "messages", answers: popAnswers,
		query: append([]queryParam{{name: "namespace", kind: "string"}, {name: "task", kind: "string"}}, popQuery...),
	},
	OpAck:               {id: "ack", tag: "messages", body: "AckRequest", answers: answers200("AckResults")},
	OpAckBatch:          {id: "ackBatch", tag: "messages", body: "AckBatchRequest", answers: answers200("AckResults")},
	OpExtend:            {id: "extendLease", tag: "messages", body: "ExtendRequest", optional: true, answers: answers200("ExtendResult")},
	OpTransaction:       {id: "transaction", tag: "messages", body: "TransactionRequest", answers: answers200("TransactionResult")},
	OpFetch:             {id: "fetch", tag: "messages", body: "FetchRequest", answers: answers200("FetchAnswer")},
	OpPartitionsChanged: {id: "partitionsChanged", tag: "messages", body: "ChangedRequest", answers: answers200("ChangedAnswer")},

	OpConfigure:      {id: "configure", tag: "queues", body: "ConfigureRequest", answers: answers200("ConfigureAnswer")},
	OpListQueues:     {id: "listQueues", tag: "queues", query: listed, answers: answers200("QueueList")},
	OpGetQueue:       {id: "getQueue", tag: "queues", answers: answers200("QueueDetail")},
	OpDeleteQueue:    {id: "deleteQueue", tag: "queues", answers: answers200("QueueDeleted")},
	OpOverview:       {id: "overview", tag: "queues", answers: answers200("Overview")},
	OpNamespaces:     {id: "listNamespaces", tag: "queues", answers: answers200("NamespaceList")},
	OpTasks:          {id: "listTasks", tag: "queues", answers: answers200("TaskList")},
	OpListPartitions: {id: "listPartitions", tag: "queues", query: append([]queryParam{{name: "queue", kind: "string"}, {name: "partition", kind: "string"}}, listed...), answers: answers200("PartitionList")},
	OpQueueDepth:     {id: "queueDepth", tag: "queues", query: []queryParam{{name: "group", kind: "string"}}, answers: answers200("Depth")},
	OpClearQueue:     {id: "clearQueue", tag: "queues", query: []queryParam{{name: "partition", kind: "string"}}, answers: answers200("QueueCleared")},

	OpListGroups:       {id: "listGroups", tag: "groups", answers: answers200("GroupList")},
	OpLaggingGroups:    {id: "laggingGroups", tag: "groups", query: []queryParam{{name: "minLagSeconds", kind: "integer", def: 3600}}, answers: answers200("LaggingList")},
	OpGetGroup:         {id: "getGroup", tag: "groups", answers: answers200("GroupDetail")},
	OpSetSubscription:  {id: "setSubscription", tag: "groups", body: "SubscriptionRequest", answers: answers200("SubscriptionAnswer")},
	OpSeekQueue:        {id: "seekQueue", tag: "groups", body: "SeekRequest", optional: true, answers: answers200("SeekAnswer")},
	OpSeekPartition:    {id: "seekPartition", tag: "groups", body: "SeekRequest", optional: true, answers: answers200("SeekAnswer")},
	OpDeleteGroup:      {id: "deleteGroup", tag: "groups", query: []queryParam{{name: "deleteMetadata", kind: "boolean", def: true}}, answers: answers200("GroupDeleted")},
	OpDeleteGroupQueue: {id: "deleteGroupQueue", tag: "groups", query: []queryParam{{name: "deleteMetadata", kind: "boolean", def: true}}, answers: answers200("GroupDeleted")},

	OpListMessages: {id: "listMessages", tag: "browse", answers: answers200("MessageList"), query: paged(200,
		queryParam{name: "queue", kind: "string"}, queryParam{name: "partition", kind: "string"}, queryParam{name: "namespace", kind: "string"}, queryParam{name: "ns", kind: "string"},
		queryParam{name: "task", kind: "string"}, queryParam{name: "status", kind: "pending|processing|completed|dead_letter"},
		queryParam{name: "from", kind: "time"}, queryParam{name: "to", kind: "time"}, queryParam{name: "cursor", kind: "string"})},
	OpGetMessage:        {id: "getMessage", tag: "browse", answers: answers200("StoredMessage")},
	OpDeleteMessage:     {id: "deleteMessage", tag: "dead letters", answers: answers200("MessageDeleted")},
	OpRetryMessage:      {id: "retryMessage", tag: "dead letters", body: "ReplayRequest", optional: true, answers: answers200("ReplayAnswer")},
	OpDeadLetterMessage: {id: "deadLetterMessage", tag: "dead letters", body: "DeadLetterRequest", optional: true, answers: answers200("Object")},
	OpListDeadLetters: {
		id: "listDeadLetters", tag: "dead letters", answers: answers200("DeadLetterList"),
		query: paged(100, queryParam{name: "queue", kind: "string"}, queryParam{name: "consumerGroup", kind: "string"}, queryParam{name: "partition", kind: "string"},
			queryParam{name: "from", kind: "time"}, queryParam{name: "to", kind: "time"}, queryParam{name: "cursor", kind: "string"}),
	},
	OpPurgeDeadLetters: {
		id: "purgeDeadLetters", tag: "dead letters", answers: answers200("DeadLettersPurged"),
		query: append([]queryParam{
			{name: "queue", kind: "string", required: true},
			{name: "consumerGroup", kind: "string"},
			{name: "partition", kind: "string"},
			{name: "limit", kind: "integer", most: MaxRedriveLimit},
		}, fromTo...),
	},
	OpReplayDeadLetter: {id: "replayDeadLetter", tag: "dead letters", body: "ReplayRequest", optional: true, answers: answers200("ReplayAnswer")},
	OpRedrive:          {id: "redrive", tag: "dead letters", body: "RedriveRequest", answers: []opAnswer{{202, "begun", "Redrive"}, {200, "counted, of a dry run", "Redrive"}}},
	OpListRedrives: {
		id: "listRedrives", tag: "dead letters", answers: answers200("RedriveList"),
		query: []queryParam{{name: "queue", kind: "string"}, {name: "state", kind: "running|done|cancelled|failed"}, {name: "limit", kind: "integer", def: 100, most: 1000}},
	},
	OpCancelRedrive: {id: "cancelRedrive", tag: "dead letters", answers: answers200("Redrive")},
	OpRedriveStatus: {id: "redriveStatus", tag: "dead letters", answers: answers200("Redrive")},

	OpAddTrace:        {id: "addTrace", tag: "traces", body: "TraceRequest", answers: answers201("TraceAdded")},
	OpTraceNames:      {id: "listTraceNames", tag: "traces", query: paged(50), answers: answers200("TraceNameList")},
	OpTracesByName:    {id: "tracesByName", tag: "traces", query: paged(100), answers: answers200("NamedTraceList")},
	OpTracesOfMessage: {id: "tracesOfMessage", tag: "traces", answers: answers200("TraceList")},

	OpStatus: {id: "status", tag: "status", query: fromTo, answers: answers200("Status")},
	OpStatusQueues: {
		id: "statusQueues", tag: "status", answers: answers200("StatusQueueList"),
		query: paged(100, queryParam{name: "namespace", kind: "string"}, queryParam{name: "task", kind: "string"}),
	},
	OpStatusQueue: {id: "statusQueue", tag: "status", answers: answers200("StatusQueue")},
	OpStatusAnalytics: {
		id: "statusAnalytics", tag: "status", answers: answers200("StatusAnalytics"),
		query: append([]queryParam{{name: "interval", kind: "hour|minute|day", def: "hour"}}, fromTo...),
	},
	OpStatusBuffers:    {id: "statusBuffers", tag: "status", answers: answers200("Buffers")},
	OpQueueLag:         {id: "queueLag", tag: "analytics", query: ofTime, answers: answers200("QueueLag")},
	OpQueueOps:         {id: "queueOps", tag: "analytics", query: ofTime, answers: answers200("QueueOps")},
	OpParkedReplicas:   {id: "queueParkedReplicas", tag: "analytics", query: ofTime, answers: answers200("ParkedReplicas")},
	OpRetentionHistory: {id: "retentionHistory", tag: "analytics", query: append([]queryParam{{name: "groupBy", kind: "queue|"}}, ofTime...), answers: answers200("RetentionHistory")},
	OpWorkload: {
		id: "workload", tag: "analytics", answers: answers200("Workload"),
		query: append([]queryParam{{name: "limit", kind: "integer", def: 200, most: 1000}}, fromTo...),
	},
	OpDeadLetterSignatures: {
		id: "deadLetterSignatures", tag: "analytics", answers: answers200("DeadLetterSignatures"),
		query: append([]queryParam{{name: "queue", kind: "string", required: true}, {name: "limit", kind: "integer", def: 200, most: 1000}}, fromTo...),
	},
	OpPartitionLiveness: {
		id: "partitionLiveness", tag: "analytics", answers: answers200("PartitionLiveness"),
		query: append([]queryParam{{name: "queue", kind: "string"}, {name: "limit", kind: "integer", def: 20, most: 200}}, fromTo...),
	},

	OpSystemMetrics:     {id: "systemMetrics", tag: "system", query: fromTo, answers: answers200("SystemMetrics")},
	OpWorkerMetrics:     {id: "workerMetrics", tag: "system", query: fromTo, answers: answers200("WorkerMetrics")},
	OpPostgresStats:     {id: "postgresStats", tag: "system", answers: answers200("PostgresStats")},
	OpRefreshStats:      {id: "refreshStats", tag: "system", answers: answers200("StatsRefreshed")},
	OpMaintenance:       {id: "getMaintenance", tag: "system", answers: answers200("Maintenance")},
	OpSetMaintenance:    {id: "setMaintenance", tag: "system", body: "Switch", answers: answers200("Maintenance")},
	OpPopMaintenance:    {id: "getPopMaintenance", tag: "system", answers: answers200("PopMaintenance")},
	OpSetPopMaintenance: {id: "setPopMaintenance", tag: "system", body: "Switch", answers: answers200("PopMaintenance")},
	OpSharedState:       {id: "sharedState", tag: "system", answers: answers200("SharedState")},
	OpMetricsJSON:       {id: "metricsJSON", tag: "system", answers: answers200("ProcessMetrics")},
	OpMetrics:           {id: "metrics", tag: "system", answers: answers200("Text")},
	OpOpenAPI:           {id: "openAPI", tag: "system", answers: answers200("Object")},
	OpHealth:            {id: "health", tag: "system", answers: healthAnswers("Health")},
	OpLivez:             {id: "livez", tag: "system", answers: answers200("Live")},
	OpReadyz:            {id: "readyz", tag: "system", answers: healthAnswers("Ready")},

	OpTenantUsage: {id: "tenantUsage", tag: "gateways", body: "UsageRequest", answers: answers200("UsageAnswer")},
	OpTenantNames: {id: "tenantNames", tag: "gateways", answers: answers200("NamesPage"), query: []queryParam{
		{name: "limit", kind: "integer", def: 1000, most: 10_000}, {name: "after_queue", kind: "string"}, {name: "after_partition", kind: "string"},
	}},
	OpWipeTenant: {id: "wipeTenant", tag: "gateways", answers: answers200("WipeAnswer")},
}
