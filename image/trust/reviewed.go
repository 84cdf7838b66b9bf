//go:build !unreviewed

package trust

// Reviews: CRIU's images are reviewed. Tests of what ends a hostile restore behind the review have it off, by the build tag unreviewed.
const Reviews = true
