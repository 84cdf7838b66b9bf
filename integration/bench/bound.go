package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/integration/lab"
)

// pieceSize is what is hashed and sent again and again, in memory.
const pieceSize = 4 << 20

// noise is one piece of random bytes.
func noise() []byte {
	piece := make([]byte, pieceSize)
	_, _ = rand.NewChaCha8([32]byte{}).Read(piece) // never fails
	return piece
}

// hashing is how long all cores need for that many bytes.
func hashing(size int64) float64 {
	piece, cores := noise(), int64(runtime.NumCPU())
	began := time.Now()
	var wait sync.WaitGroup
	for range cores {
		wait.Go(func() {
			h := sha256.New()
			for left := size / cores; left > 0; left -= pieceSize {
				h.Write(piece[:min(left, pieceSize)])
			}
			h.Sum(nil)
		})
	}
	wait.Wait()
	return time.Since(began).Seconds()
}

// sending is how long it takes to send that many bytes to the registry as one blob, from where cryo does.
func (b *bench) sending(ctx context.Context, h *lab.Host, size int64) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	c := h.Command(ctx, self)
	c.Env = append(c.Env, fmt.Sprintf("%s=%d http://%s/v2/bench/blob", blobVariable, size, b.registry.Address))
	r := lab.Finish(c)
	if err := r.Err(); err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(r.Stdout), 64)
}

// blobVariable makes of this program one that sends a blob on the host it runs on.
const blobVariable = "CRYO_BENCH_BLOB"

// sendBlob does that and exits, if the variable says so.
func sendBlob() {
	value, ok := os.LookupEnv(blobVariable)
	if !ok {
		return
	}
	var size int64
	var repository string
	_, err := fmt.Sscan(value, &size, &repository)
	var seconds float64
	if err == nil {
		seconds, err = upload(repository, size)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: send a blob:", err)
		os.Exit(1)
	}
	fmt.Println(seconds)
	os.Exit(0)
}

// upload sends a blob in one request, see the distribution specification: POST for a session, then PUT. The digest is known before, and
// costs nothing of the time.
func upload(repository string, size int64) (seconds float64, err error) {
	piece := noise()
	h := sha256.New()
	if _, err := io.Copy(h, &repeated{piece: piece, size: size}); err != nil {
		return 0, err
	}
	began := time.Now()
	response, err := http.Post(repository+"/blobs/uploads/", "", nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	location, err := response.Location()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", response.Status, err)
	}
	query := location.Query()
	query.Set("digest", digest.NewDigest(digest.SHA256, h).String())
	location.RawQuery = query.Encode()
	request, err := http.NewRequest(http.MethodPut, location.String(), &repeated{piece: piece, size: size})
	if err != nil {
		return 0, err
	}
	request.ContentLength = size
	request.Header.Set("Content-Type", "application/octet-stream")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		return 0, errors.New(answer.Status)
	}
	return time.Since(began).Seconds(), nil
}

// repeated reads a piece over and over.
type repeated struct {
	piece      []byte
	size, done int64
}

func (r *repeated) Read(to []byte) (int, error) {
	if r.done == r.size {
		return 0, io.EOF
	}
	n := copy(to[:min(int64(len(to)), r.size-r.done)], r.piece[r.done%int64(len(r.piece)):])
	r.done += int64(n)
	return n, nil
}
