//go:build previous

package worker

// Programs built with this tag are taken by tests for those of the release before.
const protocol = previous

const takesOrders = false
