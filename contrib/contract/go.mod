module github.com/cryo-project/cryo/contrib/contract

go 1.22.0
