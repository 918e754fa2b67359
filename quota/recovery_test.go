package quota

import (
	"testing"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// A failover is not paid for by those who suffer from it; other cells, and later deliveries, are debited as ever.
func TestDeliveriesAreFreeWhileACellRecovers(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(10, 20))
		other := clusterWith(messageRate(10, 20))
		c.Cell, other.Cell = "hit", "well"
		g.(*Gate).BrokerLost("hit", start)
		last := start.Add(recoveryTime - time.Millisecond)
		g.Settle(admit(t, g, c, pop(), last), Outcome{Delivered: 50}, last)
		admit(t, g, c, push(20), last)
		g.Settle(admit(t, g, other, pop(), last), Outcome{Delivered: 50}, last)
		refused(t, g, other, push(1), last, wire.RateLimited, plans.LimitMessages)
		over := start.Add(recoveryTime)
		g.Settle(admit(t, g, c, pop(), over), Outcome{Delivered: 50}, over)
		refused(t, g, c, push(1), over, wire.RateLimited, plans.LimitMessages)
	})
}
