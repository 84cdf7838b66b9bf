// Draws random values when it is restored; see TestClonesLanguages. There is nothing by which Node.js can be seeded anew: what is drawn then is of a new process.
const crypto = require('crypto'), fs = require('fs'), readline = require('readline'), { execFileSync } = require('child_process');

function draw(word) {
	const values = {
		'Node.js crypto.randomUUID': crypto.randomUUID(),
		'Node.js crypto.randomBytes': crypto.randomBytes(16).toString('hex'),
		'Node.js crypto.getRandomValues': Buffer.from(crypto.getRandomValues(new Uint8Array(16))).toString('hex'),
		'Node.js Math.random': Math.random(),
	};
	for (const [name, value] of Object.entries(values)) console.log(`${word} ${name}: ${value}`);
}

if (process.argv[2] === 'child') {
	draw('renewed');
} else {
	const dir = process.env.CRYO_CONTROL_DIR;
	fs.mkdirSync(dir, { recursive: true });
	execFileSync('mkfifo', [dir + '/events']);
	draw('first');
	const lines = readline.createInterface({ input: fs.createReadStream(null, { fd: fs.openSync(dir + '/events', 'r+') }) });
	lines.on('line', line => {
		if (!line.startsWith('restored ')) return;
		draw('drawn');
		process.stdout.write(execFileSync(process.execPath, [__filename, 'child']));
		console.log('over');
	});
	fs.writeFileSync(dir + '/ready', '');
	console.log('waits');
}
