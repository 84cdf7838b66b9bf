//go:build unconfined

package confinement

const confines = false
