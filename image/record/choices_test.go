package record

import "testing"

// TestParse reads what a dump writes, and nothing else.
func TestParse(t *testing.T) {
	for text, want := range map[string]*Choices{
		`{}`:                               {},
		`{"tcpEstablished":true}`:          {TCPEstablished: true},
		`{"fileLocks":true}`:               {FileLocks: true},
		`{"externalSockets":true}`:         {ExternalSockets: true},
		`{"shellJob":true}`:                nil,
		`{"fileLocks":true} {}`:            nil,
		`{"fileLocks":1}`:                  nil,
		`[]`:                               nil,
		``:                                 nil,
		`{"lsmProfile":"unconfined"}`:      nil,
		`{"FILELOCKS":true,"fileLocks":0}`: nil,
	} {
		got, err := ParseChoices([]byte(text))
		if (err == nil) != (want != nil) || want != nil && got != *want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}
