// Example is a web server whose start takes a while, since it fills a cache. Then it reports that it is ready. After a restore it makes a new identity, so that no two clones have the same.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/cryo-project/cryo/contrib/contract"
)

// identity is another in each clone.
var identity atomic.Value

// random is seeded anew in each clone. Only renew uses it: else it would need a lock.
var random *rand.Rand

func main() {
	renew("")
	c, err := contract.Open()
	if err != nil {
		log.Fatal(err)
	}
	go follow(c)
	cache := map[int]int{}
	for n := range 1000 { // as expensive as a cache is
		cache[n] = n * n
		time.Sleep(time.Millisecond / 10)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s has %d entries\n", identity.Load(), len(cache))
	})
	var listen net.ListenConfig
	listen.SetMultipathTCP(false) // which CRIU cannot save
	l, err := listen.Listen(context.Background(), "tcp", "127.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Ready(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("waits")
	log.Fatal(http.Serve(l, nil))
}

// renew makes what two clones must not share.
func renew(name string) {
	random = contract.Rand()
	identity.Store(fmt.Sprintf("%s-%016x", name, random.Uint64()))
}

// follow does what is to be done after a restore.
func follow(c *contract.Contract) {
	for {
		event, err := c.Wait()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("event", event.Name, event.Generation)
		if event.Name != contract.Restored {
			continue
		}
		changes, err := c.Changes()
		if err != nil {
			log.Fatal(err)
		}
		for name, value := range changes.Environment { // the environment with which the new container starts programs
			if value == nil {
				_ = os.Unsetenv(name)
			} else {
				_ = os.Setenv(name, *value)
			}
		}
		renew(changes.Hostname.Is)
		fmt.Println("identity", identity.Load(), "pause", changes.Pause)
	}
}
