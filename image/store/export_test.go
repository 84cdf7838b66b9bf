package store

// What external tests need to know.
const DamagedTries = damagedTries
