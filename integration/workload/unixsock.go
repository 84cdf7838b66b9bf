package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"
)

// patience is how long a check waits for what should be there at once.
const patience = 10 * time.Second

// unixSockets are listeners with a name in the file system and an abstract one, each with a connection that has answered
// before, from a second process, and a datagram socket with a message waiting.
type unixSockets struct {
	listeners map[string]net.Listener
	clients   map[string]*client
	datagram  *net.UnixConn
}

// client is a connection and how many lines went over it.
type client struct {
	conn  net.Conn
	lines *bufio.Reader
	sent  int
}

func startUnixSockets(flags *flag.FlagSet, args []string) (workload, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	u := &unixSockets{listeners: map[string]net.Listener{}, clients: map[string]*client{}}
	for _, path := range []string{"/srv/stream.sock", "@workload"} {
		_ = os.Remove(path)
		l, err := net.Listen("unix", path)
		if err != nil {
			return nil, err
		}
		u.listeners[path] = l
		go echo(l)
		if u.clients[path], err = connect("unix", path); err != nil {
			return nil, err
		}
	}
	const path = "/srv/datagram.sock"
	_ = os.Remove(path)
	address := &net.UnixAddr{Name: path, Net: "unixgram"}
	var err error
	if u.datagram, err = net.ListenUnixgram("unixgram", address); err != nil {
		return nil, err
	}
	return u, u.send()
}

// echo answers each line of each connection with itself.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "workload: accept:", err)
			os.Exit(1)
		}
		go func() {
			defer c.Close()
			lines := bufio.NewScanner(c)
			for lines.Scan() {
				fmt.Fprintln(c, lines.Text())
			}
		}()
	}
}

func connect(network, address string) (*client, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, lines: bufio.NewReader(conn)}
	return c, c.roundTrip()
}

// roundTrip sends a line over the connection and wants it back.
func (c *client) roundTrip() error {
	c.sent++
	// None stays set, for clocks differ from host to host.
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	defer c.conn.SetDeadline(time.Time{})
	if _, err := fmt.Fprintf(c.conn, "line %d\n", c.sent); err != nil {
		return err
	}
	line, err := c.lines.ReadString('\n')
	if want := fmt.Sprintf("line %d\n", c.sent); err != nil || line != want {
		return fmt.Errorf("connection to %s answers %q, not %q (%v)", c.conn.RemoteAddr(), line, want, err)
	}
	return nil
}

func (u *unixSockets) send() error {
	c, err := net.Dial("unixgram", "/srv/datagram.sock")
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("waiting"))
	return err
}

// Check uses the old connections and makes new ones, and reads the message and sends it again.
func (u *unixSockets) Check() (map[string]any, error) {
	state := map[string]any{"listeners": len(u.listeners)}
	for path, c := range u.clients {
		if err := c.roundTrip(); err != nil {
			return state, err
		}
		fresh, err := connect("unix", path)
		if err != nil {
			return state, fmt.Errorf("new connection: %w", err)
		}
		if err := fresh.conn.Close(); err != nil {
			return state, err
		}
	}
	buffer := make([]byte, 100)
	if err := u.datagram.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return state, err
	}
	n, err := u.datagram.Read(buffer)
	if err != nil || string(buffer[:n]) != "waiting" {
		return state, fmt.Errorf("datagram socket holds %q (%v)", buffer[:n], err)
	}
	if err := u.send(); err != nil {
		return state, err
	}
	if err := exec.Command("/bin/busybox", "test", "-S", "/srv/stream.sock").Run(); err != nil {
		return state, fmt.Errorf("socket has no name: %w", err)
	}
	return state, nil
}
