package main

const childName = "child"

func child([]string) error { return nil }
