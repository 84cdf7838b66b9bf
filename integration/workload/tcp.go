package main

import (
	"flag"
	"fmt"
	"net"
)

// tcp is a listener, and with --connect a connection that was established before.
type tcp struct {
	listener net.Listener
	client   *client
}

func startTCP(flags *flag.FlagSet, args []string) (workload, error) {
	listen := flags.String("listen", "0.0.0.0:7000", "address to listen on; echoes lines")
	peer := flags.String("connect", "", "address of an echo service to keep a connection to; self: the own one")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return nil, err
	}
	t := &tcp{listener: l}
	go echo(l)
	if *peer == "self" {
		*peer = l.Addr().String()
	}
	if *peer != "" {
		t.client, err = connect("tcp", *peer)
	}
	return t, err
}

// Check connects anew, and uses the old connection.
func (t *tcp) Check() (map[string]any, error) {
	state := map[string]any{"listening": t.listener.Addr().String()}
	_, port, err := net.SplitHostPort(t.listener.Addr().String())
	if err != nil {
		return state, err
	}
	fresh, err := connect("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return state, fmt.Errorf("new connection: %w", err)
	}
	if err := fresh.conn.Close(); err != nil {
		return state, err
	}
	if t.client == nil {
		return state, nil
	}
	state["connection"] = t.client.conn.LocalAddr().String() + " " + t.client.conn.RemoteAddr().String()
	return state, t.client.roundTrip()
}
