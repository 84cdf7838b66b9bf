//go:build !unconfined

package guard

// confines: CRIU is confined, and what it has made is compared with the grant. Tests of what the review alone keeps from happening have it off, by the build tag unconfined.
const confines = true
