"""From what a verifier left to one number: `scoring` composes, `reports` reads test results, `answers` compares."""
