//go:build !previous

package worker

const protocol = previous + 1

// takesOrders: a checkpoint may have an order.
const takesOrders = true
