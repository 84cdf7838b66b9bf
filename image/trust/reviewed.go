//go:build !unreviewed

package trust

// Reviews reports that CRIU's images are reviewed. Tests of what ends a hostile restore behind the review have it off, by the build tag unreviewed.
const Reviews = true
