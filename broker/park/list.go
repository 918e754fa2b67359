package park

// list is an intrusive doubly linked list: its links live in the elements, so joining and leaving allocate nothing.
type list[T any] struct {
	front, back *node[T]
	len         int
}

// node is the place of one element in at most one list.
type node[T any] struct {
	prev, next *node[T]
	in         *list[T]
	value      T
}

func (l *list[T]) pushBack(n *node[T]) {
	n.in, n.prev, n.next = l, l.back, nil
	if l.back != nil {
		l.back.next = n
	} else {
		l.front = n
	}
	l.back = n
	l.len++
}

func (l *list[T]) pushFront(n *node[T]) {
	n.in, n.prev, n.next = l, nil, l.front
	if l.front != nil {
		l.front.prev = n
	} else {
		l.back = n
	}
	l.front = n
	l.len++
}

// rotate moves the front to the back.
func (l *list[T]) rotate() {
	n := l.front
	n.remove()
	l.pushBack(n)
}

// remove takes n out of the list it is in, if any.
func (n *node[T]) remove() {
	l := n.in
	if l == nil {
		return
	}
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.front = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.back = n.prev
	}
	n.prev, n.next, n.in = nil, nil, nil
	l.len--
}
