"""Text on standard input to an SVG that looks like a terminal: `zbench report ... | python3 picture.py > quickstart.svg`."""

import html
import sys

lines = [line.rstrip("\n") for line in sys.stdin]
width, height = 7.83 * max(map(len, lines)) + 32, 16 * len(lines) + 24
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" role="img">')
print('<rect width="100%" height="100%" rx="6" fill="#16181d"/>')
print('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="#d8dbe2">')
for number, line in enumerate(lines):
    # The length is stated, so that columns stand under each other in any font.
    if line:
        length = f'textLength="{7.83 * len(line):.1f}" lengthAdjust="spacingAndGlyphs"'
        # Viewers merge plain spaces, whatever xml:space says.
        text = html.escape(line).replace(" ", "\N{NO-BREAK SPACE}")
        print(f'<text x="12" y="{16 * number + 26}" {length}>{text}</text>')
print("</g>\n</svg>")
