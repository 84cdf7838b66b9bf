package main

import "testing"

func TestJudgeCheckpoint(t *testing.T) {
	whole := seen{state: runs, listed: true, whole: true}
	with := func(s seen, change func(*seen)) seen { change(&s); return s }
	ended := with(whole, func(s *seen) { s.state = stopped })
	for _, test := range []struct {
		name         string
		seen         seen
		ending, push bool
		want         string
	}{
		{"done", whole, false, false, ranOn},
		{"ended", ended, true, false, gone},
		{"pushed", with(whole, func(s *seen) { s.remote, s.remoteWhole = true, true }), false, true, ranOn},
		{"not pushed", whole, false, true, violation},
		{"runs on though ended", whole, true, false, violation},
		{"gone though left running", ended, false, false, violation},
		{"gone with its shim", with(ended, func(s *seen) { s.harmed = "shim" }), false, false, gone},
		{"refused", seen{code: 11, text: "no", state: runs}, true, false, ranOn},
		{"both lost", seen{code: 6, text: "no", state: stopped, tagged: true}, true, false, violation},
		{"both lost with the shim, after the snapshot", seen{code: exitLost, text: "lost", state: stopped, tagged: true, harmed: "shim"}, true, false, violation},
		{"lost with the shim, before", seen{code: exitLost, text: "lost", state: stopped, harmed: "shim"}, true, false, gone},
		{"lost with the shim, and another code", seen{code: 6, text: "no", state: stopped, harmed: "shim"}, true, false, violation},
		{"lost with nothing harmed", seen{code: exitLost, text: "lost", state: stopped}, false, false, violation},
		{"said to be lost", seen{code: exitLost, text: "lost", state: runs}, false, false, violation},
		{"paused", seen{code: 11, state: "paused"}, false, false, violation},
		{"silent", seen{code: 0, state: silent}, false, false, violation},
		{"half", seen{code: exitKilled, state: runs, listed: true}, false, false, violation},
		{"half in the registry", seen{code: exitKilled, state: runs, remote: true}, false, true, violation},
		{"killed, ended", with(ended, func(s *seen) { s.code = exitKilled }), true, false, gone},
		{"ended, and a word of it", with(ended, func(s *seen) { s.code, s.text = 6, "the snapshot is complete" }), true, false, gone},
		{"ended, and no word of it", with(ended, func(s *seen) { s.code, s.text = 6, "no" }), true, false, violation},
	} {
		test.seen.reported, test.seen.logged = true, true
		if got := judgeCheckpoint(test.seen, test.ending, test.push); got.outcome != test.want {
			t.Errorf("%s: %s %v", test.name, got.outcome, got.wrong)
		}
	}
}

func TestJudgeRestore(t *testing.T) {
	for _, test := range []struct {
		name string
		seen seen
		want string
	}{
		{"done", seen{state: runs}, ranOn},
		{"refused", seen{code: 11, text: "no", state: absent}, refused},
		{"refused without a word", seen{code: 11, state: absent}, violation},
		{"runs though failed", seen{code: 6, text: "no", state: runs}, violation},
		{"left", seen{code: 6, text: "no", state: stopped}, violation},
		{"left without a task", seen{code: 6, text: "no", state: taskless}, violation},
		{"left half", seen{code: 11, text: "no", state: "created"}, violation},
		{"killed, left half", seen{code: exitKilled, state: "created"}, refused},
		{"killed before its shim", seen{code: exitKilled, state: taskless}, refused},
		{"killed, done", seen{code: exitKilled, state: runs}, ranOn},
		{"killed, undone", seen{code: exitKilled, state: absent}, refused},
		{"gone with its memory", seen{state: stopped, harmed: "restore"}, gone},
		{"ended by what passed, later", seen{state: stopped, passing: true, coming: true}, violation},
		{"ended by what passed", seen{code: 3, text: "it ran, and was ended, since its memory did not all come", state: stopped, passing: true}, violation},
		{"gone", seen{state: stopped, harmed: "cryo"}, violation},
		{"gone while its memory came", seen{state: stopped, coming: true}, gone},
		{"runs with all its memory", seen{code: 10, text: "a runs and has all its memory, but not all of the snapshot is in the local store", state: runs}, ranOn},
		{"gone while its memory was waited for", seen{code: 6, text: "it ran, and was ended, since its memory did not all come", state: stopped}, gone},
		{"wrong", seen{state: wrong}, violation},
		{"half pulled", seen{code: 6, text: "no", state: absent, listed: true}, violation},
	} {
		test.seen.reported, test.seen.logged = true, true
		if got := judgeRestore(test.seen); got.outcome != test.want {
			t.Errorf("%s: %s %v", test.name, got.outcome, got.wrong)
		}
	}
}

func TestJudgeStock(t *testing.T) {
	for _, test := range []struct {
		name    string
		seen    seen
		restore bool
		want    string
	}{
		{"done", seen{state: runs}, false, ranOn},
		{"left paused", seen{code: exitKilled, state: "paused"}, false, refused},
		{"done and paused", seen{state: "paused"}, false, violation},
		{"stopped", seen{code: 1, state: stopped}, false, violation},
		{"stopped with its shim", seen{code: 1, state: stopped, harmed: "shim"}, false, gone},
		{"not restored", seen{code: 1, state: taskless}, true, refused},
		{"restored, gone", seen{state: stopped}, true, violation},
		{"silent", seen{code: exitKilled, state: silent}, true, violation},
	} {
		if got := judgeStock(test.seen, test.restore); got.outcome != test.want {
			t.Errorf("%s: %s %v", test.name, got.outcome, got.wrong)
		}
	}
}

func TestJudgeCopy(t *testing.T) {
	for _, test := range []struct {
		name            string
		seen            seen
		removes, remote bool
		want            string
	}{
		{"pulled", seen{listed: true, whole: true}, false, false, ranOn},
		{"not pulled", seen{}, false, false, violation},
		{"refused", seen{code: 6, text: "no"}, false, false, refused},
		{"half", seen{code: 6, text: "no", listed: true}, false, false, violation},
		{"pushed", seen{remote: true, remoteWhole: true}, false, true, ranOn},
		{"half pushed", seen{code: exitKilled, remote: true}, false, true, violation},
		{"removed", seen{}, true, false, ranOn},
		{"not removed", seen{listed: true, whole: true}, true, false, violation},
		{"half removed", seen{code: exitKilled, listed: true}, true, false, violation},
	} {
		if got := judgeCopy(test.seen, test.removes, test.remote); got.outcome != test.want {
			t.Errorf("%s: %s %v", test.name, got.outcome, got.wrong)
		}
	}
}

// TestJudgeOthers is for what is neither killed nor stopped.
func TestJudgeOthers(t *testing.T) {
	for name, test := range map[string]struct {
		got  verdict
		want string
	}{
		"reset, no snapshot":       {judgeCheckpoint(seen{code: exitKilled, state: stopped, harmed: "host", reported: true, logged: true}, false, false), gone},
		"reset, snapshot lost":     {judgeCheckpoint(seen{code: exitKilled, state: stopped, harmed: "host", tagged: true}, false, false), violation},
		"damaged while filled in":  {judgeRestore(seen{state: stopped, listed: true, whole: true, harmed: "store", reported: true, logged: true}), gone},
		"gone without an event":    {judgeRestore(seen{state: stopped, listed: true, whole: true, harmed: "restore", logged: true}), violation},
		"gone without a log":       {judgeRestore(seen{state: stopped, listed: true, whole: true, harmed: "restore", reported: true}), violation},
		"ended without an event":   {judgeCheckpoint(seen{state: stopped, listed: true, whole: true}, true, false), violation},
		"ended, with an event":     {judgeCheckpoint(seen{state: stopped, listed: true, whole: true, reported: true}, true, false), gone},
		"twice, both refused":      {judgeRestore(seen{code: 5, text: "no", state: absent, twice: true}), violation},
		"twice, both pushed":       {judgeCopy(seen{remote: true, remoteWhole: true, twice: true}, false, true), ranOn},
		"twice, neither pulled":    {judgeCopy(seen{code: 6, text: "no", twice: true}, false, false), violation},
		"twice, no checkpoint":     {judgeCheckpoint(seen{code: 11, text: "no", state: runs, twice: true}, false, false), violation},
		"reset in a stock restore": {judgeStock(seen{code: exitKilled, state: stopped, harmed: "host"}, true), refused},
	} {
		if test.got.outcome != test.want {
			t.Errorf("%s: %s %v", name, test.got.outcome, test.got.wrong)
		}
	}
}
