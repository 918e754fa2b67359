package wire

// Header names of the protocol. The X-Queen- prefix belongs to us: a gateway removes every such header a client
// sends before it adds its own.
const (
	HeaderPrefix     = "X-Queen-"
	HeaderTenant     = "X-Queen-Tenant"     // the tenant's broker UUID; the signed token must agree with it
	HeaderRequestID  = "X-Queen-Request-Id" // minted by the gateway, on every answer
	HeaderActCluster = "X-Queen-Act-Cluster"
	HeaderDelivered  = "X-Queen-Delivered" // broker to gateway, on a pop: how many messages are delivered for the first time

	// HeaderStored is from broker to gateway, on a transaction or a replay: how many messages it stored, 0 when it was
	// rolled back or the message was there; on a redrive, how many letters it found and will return.
	HeaderStored = "X-Queen-Stored"

	// HeaderDegraded says on a pop's empty answer that the gateway's cell could not serve it.
	HeaderDegraded = "X-Queen-Degraded"
	// HeaderDraining is from broker to gateway, on every answer of a broker that stops: it wants no further requests.
	HeaderDraining = "X-Queen-Draining"

	HeaderLimitName      = "X-Queen-Limit-Name"
	HeaderLimitLimit     = "X-Queen-Limit-Limit"
	HeaderLimitRemaining = "X-Queen-Limit-Remaining"
	HeaderLimitReset     = "X-Queen-Limit-Reset" // whole seconds
	HeaderLimitMode      = "X-Queen-Limit-Mode"  // enforce, shadow, or local while a fleet does not share

	// HeaderRateLimitPolicy and HeaderRateLimit are of draft-ietf-httpapi-ratelimit-headers.
	HeaderRateLimitPolicy = "RateLimit-Policy"
	HeaderRateLimit       = "RateLimit"

	HeaderRetryAfter = "Retry-After" // whole seconds, at least 1
)
