//go:build previous

package checkpoint

// Newest is that of the builds before: programs built with this tag speak it, and refuse any other, as those did. Tests take them for the release before.
const Newest = Previous

const ranges = false
