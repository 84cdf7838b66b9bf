import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;

/** Draws random values when it is restored, and again by generators that it has seeded anew; see TestClonesLanguages. */
public class Draw {
	private final SecureRandom secure = new SecureRandom(), drbg, sha1;
	private Random random = new Random();

	private Draw() throws Exception {
		drbg = SecureRandom.getInstance("DRBG");
		sha1 = SecureRandom.getInstance("SHA1PRNG");
	}

	private void draw(String word) {
		Map<String, Object> values = new LinkedHashMap<>();
		values.put("Java SecureRandom", secure.nextLong());
		values.put("Java SecureRandom DRBG", drbg.nextLong());
		values.put("Java SecureRandom SHA1PRNG", sha1.nextLong());
		values.put("Java UUID.randomUUID", UUID.randomUUID());
		values.put("Java Random", random.nextLong());
		values.put("Java Math.random", Math.random());
		values.put("Java ThreadLocalRandom", ThreadLocalRandom.current().nextLong());
		values.forEach((name, value) -> System.out.println(word + " " + name + ": " + value));
	}

	private void renew() throws Exception {
		byte[] seed = Files.newInputStream(Path.of("/dev/urandom")).readNBytes(48);
		drbg.setSeed(seed); // reseed() reads on in what Java has read of the kernel before: clones get the same
		sha1.setSeed(seed);
		random = new Random(new SecureRandom(seed).nextLong());
	}

	public static void main(String[] args) throws Exception {
		Path dir = Files.createDirectories(Path.of(System.getenv("CRYO_CONTROL_DIR")));
		new ProcessBuilder("mkfifo", dir + "/events").start().waitFor();
		RandomAccessFile events = new RandomAccessFile(dir + "/events", "rw");
		Draw draw = new Draw();
		draw.draw("first");
		Files.writeString(dir.resolve("ready"), "");
		System.out.println("waits");
		for (String line; (line = events.readLine()) != null;) {
			if (!line.startsWith("restored "))
				continue;
			draw.draw("drawn");
			draw.renew();
			draw.draw("renewed");
			System.out.println("over");
		}
	}
}
