package record

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// ChoicesFile is the file beside CRIU's images that has them, so that they travel with the images through any client's tar.
const ChoicesFile = "cryo.json"

// Choices are options of CRIU's. Without them CRIU refuses the images. A snapshot that has forged them gets what the
// comments say.
type Choices struct {
	// TCPEstablished has CRIU make the established connections of the images, in the container's network namespace: packets that a process with CAP_NET_RAW, which
	// containers have, can send as well. In the host's namespace, that is the grant for it.
	TCPEstablished bool `json:"tcpEstablished,omitempty"`
	// FileLocks has CRIU lock files that the processes have open, which they can do themselves: flock(2) and fcntl(2) ask for no more than the descriptor.
	FileLocks bool `json:"fileLocks,omitempty"`
	// ExternalSockets has CRIU, as root, connect processes to unix sockets of outside: that must be granted.
	ExternalSockets bool `json:"externalSockets,omitempty"`
}

// most bounds the file, in bytes.
const most = 4 << 10

// ParseChoices reads a file. One that it does not know is an error: a newer version may have the restore do what was not reviewed.
func ParseChoices(data []byte) (c Choices, err error) {
	if len(data) > most {
		return c, fmt.Errorf("its %d bytes are more than %d", len(data), most)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Choices{}, err
	}
	return c, json.Unmarshal(data, new(json.RawMessage)) // nothing follows
}
