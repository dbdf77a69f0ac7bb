"""Speech by espeak-ng, roughened, and Gemma 4's audio features of it."""

import io
import math
import subprocess
import wave

import numpy as np
import scipy.signal
from chat import Example

RATE = 16_000
MAX_FRAMES = 480  # 4.8 s
BASES = ["en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-029"]
VARIANTS = ["m1", "m2", "m4", "m5", "m6", "m7", "f1", "f2", "f4", "klatt2", "Alex", "Andy", "Michael", "linda", "steph", "max", "adam", "john"]  # fmt: skip
UNSEEN_VARIANTS = ["m3", "m8", "f3", "f5", "Annie", "paul"]
ASKS = ["Transcribe the audio.", "What is said in the recording?", "Write down what you hear.", "Transcribe this speech."]


def voice(rng, unseen=False):
    return f"{rng.choice(BASES)}+{rng.choice(UNSEEN_VARIANTS if unseen else VARIANTS)}"


def speak(text, voice, speed, pitch):
    """Samples in [-1, 1] at 16 kHz."""
    command = ["espeak-ng", "--stdout", "-v", voice, "-s", str(speed), "-p", str(pitch), text]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    # espeak-ng doesn't know the length of what it writes to a pipe: the data is what follows the header.
    rate = wave.open(io.BytesIO(data)).getframerate()
    samples = np.frombuffer(data[44 : 44 + (len(data) - 44) // 2 * 2], "<i2").astype(np.float32) / 32768
    divisor = math.gcd(RATE, rate)
    return scipy.signal.resample_poly(samples, RATE // divisor, rate // divisor).astype(np.float32)


def roughen(samples, rng):
    """Silence around, another loudness, now and then an echoing room, noise."""
    draws = np.random.default_rng(rng.getrandbits(32))
    quiet = np.abs(samples) < 0.004
    first, last = np.argmax(~quiet), len(samples) - np.argmax(~quiet[::-1])
    samples = samples[first:last]
    before, after = (np.zeros(int(RATE * rng.uniform(0.02, 0.2)), np.float32) for _ in range(2))
    samples = np.concatenate([before, samples, after])
    if rng.random() < 0.35:
        length = int(RATE * rng.uniform(0.08, 0.3))
        response = draws.normal(0, 1, length) * np.exp(-np.arange(length) / (length / 5)) * 0.08
        response[0] = 1
        samples = scipy.signal.fftconvolve(samples, response)[: len(samples)]
    samples = samples / (np.abs(samples).max() + 1e-6) * rng.uniform(0.25, 0.9)
    if rng.random() < 0.7:
        samples = samples + draws.normal(0, 1, len(samples)) * 10 ** rng.uniform(-4, -2.1)
    return np.clip(samples, -1, 1).astype(np.float32)


def utter(text, rng, unseen=False):
    """A roughened recording of `text`, as 16-bit samples, or None if it is too long."""
    samples = speak(text, voice(rng, unseen), rng.randint(140, 200), rng.randint(30, 70))
    samples = roughen(samples, rng)
    if len(samples) > MAX_FRAMES * 160:
        return None
    return np.rint(samples * 32767).astype(np.int16)


def features(samples, extractor):
    """Log-mel features [frames, 128] of 16-bit samples, only the frames that are wholly sound."""
    out = extractor([samples.astype(np.float32) / 32768], return_tensors="np")
    return out["input_features"][0][out["input_features_mask"][0]]


def soft_tokens(frames):
    return math.ceil(math.ceil(frames / 2) / 2)


def ask(question, answer):
    content = [{"type": "audio"}, {"type": "text", "text": question}]
    return Example([{"role": "user", "content": content}], answer, kind="audio")


def conversation(text, rng):
    return ask(rng.choice(ASKS), text)
