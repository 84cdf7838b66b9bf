package prewarmed

// verb is what a request asks for.
type verb string

const (
	verbLook  verb = "look"
	verbLease verb = "lease" // answers with descriptors, until all pieces are told
	verbUse   verb = "use"   // by who has the lease: the process lets go, and ends
	verbEnd   verb = "end"   // whoever has the lease
)

// request is a message to the process.
type request struct {
	Do      verb `json:"do"`
	Version int  `json:"version"`
}

// answer is a message of the process.
type answer struct {
	Leased bool `json:"leased,omitempty"` // by another
	Pieces int  `json:"pieces,omitempty"` // descriptors of so many come with it
	Done   bool `json:"done,omitempty"`
	Other  bool `json:"other,omitempty"` // it is of another version, or not asked so
}

// begin is what who starts the process says first; then come descriptors, each message with its number of pieces, and kept.
type begin struct {
	Dir    string `json:"dir,omitempty"` // where to listen
	Pieces int    `json:"pieces,omitempty"`
	Kept   bool   `json:"kept,omitempty"` // the directory has its name: live on. It is renamed to Dir
}

// batch is how many descriptors go with a message.
const batch = 100
