"""Fit the minimax polynomials of kernels/elementary.py: `python tools/fit_polynomials.py`.

Remez's exchange in 60 digits, for the smallest *relative* error. Both functions are written as
x Q(x^2), which keeps relative accuracy at x = 0:

    log(f)    = s Q(s^2), s = (f-1)/(f+1), f in [sqrt(1/2), sqrt(2)]
    sin(pi x) = x Q(x^2),                  x in [-1/2, 1/2]
"""

from collections.abc import Callable

from mpmath import mp, mpf

mp.dps = 60
GRID = 400


def log_quotient(t: mpf) -> mpf:
    """Return log((1+s)/(1-s)) / s with s^2 = t."""
    if t < mpf(10) ** -40:
        return 2 + 2 * t / 3
    s = mp.sqrt(t)
    return mp.log((1 + s) / (1 - s)) / s


def sinpi_quotient(t: mpf) -> mpf:
    """Return sin(pi x) / x with x^2 = t."""
    if t < mpf(10) ** -40:
        return mp.pi - mp.pi**3 * t / 6
    x = mp.sqrt(t)
    return mp.sin(mp.pi * x) / x


def remez(function: Callable[[mpf], mpf], end: mpf, degree: int) -> tuple[list[mpf], mpf]:
    """Return the coefficients on [0, end], the constant first, and the largest relative error."""
    count = degree + 2
    grid = [end * (1 - mp.cos(mp.pi * k / GRID)) / 2 for k in range(GRID + 1)]
    points = [grid[round(GRID * k / (count - 1))] for k in range(count)]
    while True:
        system = mp.matrix(count, count)
        for row, x in enumerate(points):
            for column in range(degree + 1):
                system[row, column] = x**column / function(x)
            system[row, degree + 1] = (-1) ** row
        *coefficients, level = list(mp.lu_solve(system, mp.ones(count, 1)))
        errors = [mp.polyval(coefficients[::-1], x) / function(x) - 1 for x in grid]
        extrema: list[int] = []
        for k, error in enumerate(errors):
            if extrema and errors[extrema[-1]] * error > 0:
                if abs(error) > abs(errors[extrema[-1]]):
                    extrema[-1] = k
            else:
                extrema.append(k)
        largest = max(abs(error) for error in errors)
        if len(extrema) < count or largest < abs(level) * (1 + mpf(10) ** -3):
            return coefficients, largest
        points = [grid[k] for k in extrema[:count]]


def main() -> None:
    """Print both fits in the layout of the kernels."""
    largest_s = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
    for name, function, end, degree in (
        ("LOG_COEFFICIENTS", log_quotient, largest_s**2, 7),
        ("SINPI_COEFFICIENTS", sinpi_quotient, mpf(1) / 4, 8),
    ):
        coefficients, error = remez(function, end, degree)
        print(f"# relative error {mp.nstr(error, 2)}\n{name} = (")
        for coefficient in coefficients:
            print(f"    {float(coefficient)!r},")
        print(")")


if __name__ == "__main__":
    main()
