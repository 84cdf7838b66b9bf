package device

// Window is the length of what a keeper sends in order, bytes. The receiver cuts at its multiples.
const Window = 256 << 20
