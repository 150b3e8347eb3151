// The game of guess.md. GUESSES comes from guesses.js, which `make pictures` writes.
"use strict";

const GUARANTEE = Math.E / (1 + Math.E); // The most that epsilon 1 allows: 73.1 % right guesses.
const FINEST_BIT = 53; // From 1, a sum below 1/2 has no bits after this place.
const LAST_BIT = 60; // Bits that are shown after the binary point.
const FEW = 10; // Below so many guesses, chance may give any score.

const percent = share => `${(100 * share).toFixed(0)}\u00a0%`;

// What the guarantee allows of so many guesses, give or take two standard deviations.
function allowed(guesses) {
  const deviation = 2 * Math.sqrt(GUARANTEE * (1 - GUARANTEE) / guesses);
  return `allowed ${percent(GUARANTEE)}\u00a0±\u00a0${percent(deviation)}`;
}

// Parse a number as Python's float.hex writes it, which keeps every bit.
function parseHex(text) {
  const [, sign, digits, exponent] = /^(-?)0x([01]\.?[0-9a-f]*)p([+-]\d+)$/.exec(text);
  const [whole, fraction = ""] = digits.split(".");
  const mantissa = BigInt(`0x${whole}${fraction}`);
  return { sign, mantissa, power: Number(exponent) - 4 * fraction.length };
}

const toNumber = ({ sign, mantissa, power }) =>
  (sign ? -1 : 1) * Number(mantissa) * 2 ** power;

// The digits after the binary point, and whether there are more behind the last one shown.
function fractionBits({ mantissa, power }) {
  const shift = BigInt(LAST_BIT + power);
  const scaled = shift >= 0n ? mantissa << shift : mantissa >> -shift;
  const bits = scaled.toString(2).padStart(LAST_BIT + 1, "0");
  return bits.slice(-LAST_BIT);
}

function shuffle(rows) {
  const order = [...rows];
  for (let i = order.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

class Game {
  constructor(section, rows) {
    this.section = section;
    this.rows = rows;
    this.queue = [];
    this.scores = { you: [0, 0], attacker: [0, 0] };
    this.certain = 0;
    this.part = name => section.querySelector(`.${name}`);
    section.querySelectorAll("[data-guess]").forEach(button =>
      button.addEventListener("click", () => this.answer(Number(button.dataset.guess))));
    this.part("more").addEventListener("click", () => this.letAttackerPlay(100));
    section.addEventListener("keydown", event => {
      if (event.key === "0" || event.key === "1") this.answer(Number(event.key));
    });
    this.next();
    this.showScores();
  }

  draw() {
    if (!this.queue.length) this.queue = shuffle(this.rows);
    return this.queue.pop();
  }

  next() {
    this.row = this.draw();
    const number = parseHex(this.row[1]);
    const bits = fractionBits(number);
    this.part("number").textContent = String(toNumber(number));
    const [coarse, fine] = [bits.slice(0, FINEST_BIT), bits.slice(FINEST_BIT)];
    this.part("bits").innerHTML = `…${coarse.slice(-24)}<u>${fine}</u>`;
  }

  count(name, right) {
    this.scores[name][0] += right;
    this.scores[name][1] += 1;
  }

  countAttack([secret, , attack, certain]) {
    this.count("attacker", attack === secret);
    this.certain += certain;
  }

  answer(guess) {
    const [secret, , attack, certain] = this.row;
    this.count("you", guess === secret);
    this.countAttack(this.row);
    const known = certain
      ? `The attacker knew: from ${1 - secret}, no random bits lead to this number.`
      : `The attacker guessed ${attack}, which is nearer.`;
    this.part("verdict").textContent =
      `It was ${secret}. You were ${guess === secret ? "right" : "wrong"}. ${known}`;
    this.next();
    this.showScores();
  }

  letAttackerPlay(rounds) {
    const before = this.certain;
    for (let i = 0; i < rounds; i++) this.countAttack(this.draw());
    this.part("verdict").textContent =
      `The attacker guessed ${rounds} times, and was certain ${this.certain - before} times.`;
    this.showScores();
  }

  showScores() {
    for (const [name, [right, all]] of Object.entries(this.scores)) {
      const share = all ? right / all : 0;
      this.part(`${name}-bar`).style.width = `${100 * share}%`;
      const certain = name === "attacker" ? `, certain in ${this.certain}` : "";
      const limit = all < FEW ? "" : `; ${allowed(all)}`;
      this.part(`${name}-score`).textContent =
        all ? `${right} of ${all}, ${percent(share)}${certain}${limit}` : "no guess yet";
    }
  }
}

// Both games look alike: the page has the parts of the first.
const games = document.querySelectorAll("section[data-game]");
games.forEach(section => {
  section.innerHTML = games[0].innerHTML;
  section.hidden = false;
});
games.forEach(section => {
  section.querySelectorAll(".guarantee").forEach(mark => {
    mark.style.left = `${100 * GUARANTEE}%`;
  });
  new Game(section, GUESSES[section.dataset.game]);
});
