//go:build !previous

package restorer

const protocol = previous + 1

// takesOrders: a checkpoint may have an order.
const takesOrders = true
