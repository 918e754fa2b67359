// Package fair shares what is scarce among owners who do not know of each other: a queue that serves them by deficit
// round robin (Shreedhar and Varghese, 1995), and a budget that bounds what each may have waiting.
//
// # Vocabulary
//
// An owner is whoever work is done for: a tenant. An item is a piece of its work. The cost of an item is in the unit of
// what is shared: bytes of a push, partitions of a claim. The quantum is what an owner may spend per turn, times its
// weight: what it has bought over what is usual. Its credit is what it has left of its turns: it carries over while the
// owner waits for enough to pay for its next item, and is forgotten when the owner has nothing waiting. So idling earns
// nothing, and leaves nothing behind.
//
// # Promises
//
// Items of one owner leave in the order they came. While anything waits, Next returns something: no share is kept free
// for somebody absent. Take two owners that both have work waiting throughout a stretch of time, of whatever number of
// others. What they are served in it differs by at most one quantum and two maximal items, one at either end; by at most
// one quantum and one maximal item when the stretch begins with their arrival. Owners of different weights are served in
// proportion to them, with the same bound on each one's part: its own quantum and maximal item. An owner that comes waits
// for at most one turn of each other owner per quantum that its first item costs.
//
// Every operation is O(1); an item that costs more than a quantum passes one turn per quantum of its cost. In a steady
// state nothing is allocated.
//
// Queue and Budget do not lock: they stand under the mutex of whoever uses them. Places, which is made of both, and
// Weights do.
package fair
